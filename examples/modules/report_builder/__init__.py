"""The module `report_builder`: slow on purpose, as building a report often is."""
