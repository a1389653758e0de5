"""The scripts, the keys that they are given, and the rights that they need."""
