"""Messages from Kombu's Redis transport to reliq, and back."""
