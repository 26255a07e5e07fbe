"""`python -m storage_loader`: the command `storage-loader`."""

from .cli import main

main()
