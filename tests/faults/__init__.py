"""What breaks: damage, kills, Ctrl-C, forks, full disks, networks, and many writers at once."""
