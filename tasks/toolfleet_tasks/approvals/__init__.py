"""Has people approve calls before they start: a decision is durable, is made once, and is bound to what was shown."""
