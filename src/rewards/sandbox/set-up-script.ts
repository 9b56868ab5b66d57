/**
 * The shell script that builds a sandbox's file system from inside its new namespaces and then runs the program. It is
 * process 1 there: when it ends, the kernel ends all others.
 */

/**
 * Arguments: the empty folder to build in, the folder of the program's files, the size limit of both together, the user
 * id to become ("" within a user namespace, where the caller's own already means nothing), the limits for prlimit, the
 * number of paths to show, these paths, then the program with its arguments. Says "ready" on descriptor 3.
 */
export const setUpScript = String.raw`
set -eu
root=$1 files=$2 size=$3 user=$4 limits=$5 count=$6
shift 6
mount -t tmpfs -o "size=$size,nr_inodes=16384,mode=755" tmpfs "$root"
cd "$root"
show() {
  [ -e "$1" ] || return 0
  if [ -d "$1" ]; then mkdir -p ".$1"; else mkdir -p ".$(dirname "$1")"; : > ".$1"; fi
  mount --bind "$1" ".$1"
  mount -o remount,bind,ro,nosuid,nodev ".$1" 2>/dev/null || mount -o remount,bind,ro ".$1"
}
for folder in /usr /bin /sbin /lib /lib32 /lib64 /libx32; do
  if [ -L "$folder" ]; then ln -s "$(readlink "$folder")" ".$folder"; else show "$folder"; fi
done
show /etc/alternatives
show /etc/ld.so.cache
while [ "$count" -gt 0 ]; do
  case "$1" in /usr/*) ;; *) show "$1" ;; esac
  count=$((count - 1))
  shift
done
mkdir -p dev proc etc tmp work old
printf 'sandbox:x:0:0::/work:/bin/sh\n' > etc/passwd
for device in null zero random urandom; do
  : > "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
mount -t proc -o nosuid,nodev,noexec proc proc
cp -R "$files/." work/
chmod -R a+rwX work
chmod 777 tmp
[ -z "$user" ] || chown -R "$user:$user" work
pivot_root . old
cd /
umount -l old
rmdir old
cd work
become=""
[ -z "$user" ] || become="--reuid=$user --regid=$user --clear-groups"
echo ready >&3
exec 3>&-
status=0
env -i HOME=/work TMPDIR=/tmp PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
  setpriv $become --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all \
  prlimit $limits -- "$@" || status=$?
exit $status
`;
