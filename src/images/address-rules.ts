/** Decides which hosts images may be fetched from. */
import { BlockList, isIP } from "node:net";
import { UserError } from "../errors.ts";

export interface AddressRules {
  /** Whether the host of an address, as `URL.hostname` spells it, may be named. */
  allowsHost(hostname: string): boolean;
  /** Whether a connection to this IP address may be opened: it is public, or in one of the allowed networks. */
  allowsIp(ip: string): boolean;
}

/**
 * @param allowed host names (`*`: all, `*.example.com`: those below it), and IP addresses and networks, which are allowed
 * although they are not public
 * @throws UserError naming an entry that is none of these
 *
 * @example
 * addressRules(["images.example.com", "10.1.0.0/16"]);
 */
export function addressRules(allowed: readonly string[]): AddressRules {
  const networks = new BlockList();
  const names = allowed.map((entry) => entry.toLowerCase()).filter((entry) => !addNetwork(networks, entry));
  const wrong = names.find((name) => !namePattern.test(name));
  if (wrong !== undefined) {
    throw new UserError(`"${wrong}" is not a host, an IP address or a network`, {
      hint: "for example images.example.com, *.example.com, * or 10.1.0.0/16; without a protocol, port or path",
    });
  }
  const allowsName = (host: string) =>
    names.some((name) => name === "*" || name === host || (name.startsWith("*.") && host.endsWith(name.slice(1))));
  return {
    allowsHost(hostname) {
      const host = hostname.replace(/^\[(.*)\]$/, "$1").replace(/\.$/, "");
      return allowsName(host) || contains(networks, host);
    },
    allowsIp: (ip) => isPublic(ip) || contains(networks, ip),
  };
}

const namePattern = /^(\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*)$/;

function addNetwork(networks: BlockList, entry: string): boolean {
  const [, ip = "", prefix] = /^([0-9a-f.:]+?)(?:\/(\d{1,3}))?$/.exec(entry) ?? [];
  const family = isIP(ip);
  if (family === 0 || Number(prefix ?? 0) > (family === 4 ? 32 : 128)) return false;
  networks.addSubnet(ip, Number(prefix ?? (family === 4 ? 32 : 128)), `ipv${family}` as "ipv4");
  return true;
}

function contains(networks: BlockList, ip: string): boolean {
  const family = isIP(ip);
  // The zone of a link-local address names an interface of this machine.
  return family !== 0 && networks.check(ip.replace(/%.*/, ""), `ipv${family}` as "ipv4");
}

function listOf(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const network of networks) addNetwork(list, network);
  return list;
}

/** The IPv4 addresses that IANA does not list as global, multicast, and the address of Azure's own services. */
const special4 = listOf([
  ...["0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"],
  ...["192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"],
  ...["224.0.0.0/4", "240.0.0.0/4", "168.63.129.16"],
]);
/** Outside of it are loopback, mapped IPv4 addresses, NAT64, private, link-local and multicast addresses. */
const global6 = listOf(["2000::/3"]);
/** Teredo and other protocols, documentation, and 6to4, which contains an IPv4 address. */
const special6 = listOf(["2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"]);

function isPublic(ip: string): boolean {
  if (isIP(ip) === 4) return !contains(special4, ip);
  return contains(global6, ip) && !contains(special6, ip);
}
