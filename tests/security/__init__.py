"""Storage, caches and servers that mean no good, and secrets; `malicious` holds cases."""
