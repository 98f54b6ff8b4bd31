"""The server's own view of a level, from its metrics page. Start with `scraper.Scraper`."""
