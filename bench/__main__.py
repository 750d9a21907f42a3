"""``python -m bench``: runs every part and prints its table."""

from . import metadata

if __name__ == "__main__":
    metadata.main()
