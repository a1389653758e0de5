"""What each page shows, as plain data made from the inspector; nothing here knows of HTTP."""
