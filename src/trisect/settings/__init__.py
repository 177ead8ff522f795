"""How a setting is read and checked, and what is said about a mistake. It knows no setting by name."""
