"""The views: the data of each page, read with the inspector. Independent of HTTP."""
