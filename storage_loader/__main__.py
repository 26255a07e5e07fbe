"""`python -m storage_loader`: the command `storage-loader`."""

from .cli import main

if __name__ == "__main__":
    main()
