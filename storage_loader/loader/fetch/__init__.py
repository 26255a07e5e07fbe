"""Blocks of objects brought to this machine, verified: into maps of files, or into memory."""
