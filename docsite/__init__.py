"""Makes what the site has beside its written pages: drawings, and pages that are generated from the code."""
