"""Drives verl on Ray for the cluster backend: worker groups built from verl's own configuration, behind Hone's
worker protocol. It does not know algorithms."""
