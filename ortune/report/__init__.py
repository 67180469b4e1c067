"""Reports: a page of HTML about a record, a bench or a history of gates, which needs no network."""
