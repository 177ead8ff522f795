"""Ranks of one host: mailboxes and rings in shared memory."""
