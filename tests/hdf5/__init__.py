"""`storage_loader.hdf5`: the bytes of an object."""
