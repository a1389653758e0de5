"""The consume side of a transport: from a subscription to the end of a delivery."""
