"""`python -m hone_verl`: speaks worker/PROTOCOL.md over standard input and output until the input ends."""

from .driver import Driver


def main() -> None:
    driver = Driver()
    try:
        driver.serve()
    except SystemExit:
        driver.end(0)


if __name__ == "__main__":
    main()
