"""The tables of the conversations, and of those who have them."""

from sqlalchemy import JSON, Column, Float, ForeignKey, Integer, MetaData, String, Table, UniqueConstraint

METADATA = MetaData()

CONVERSATIONS = Table(
    "conversations",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("place", String(64), nullable=False, unique=True),  # a digest of user and platform fields
    Column("user_id", String(200), nullable=False),
    Column("platform", String(200)),
    Column("platform_channel_id", String(200)),
    Column("platform_thread_id", String(200)),
    Column("created_at", Float, nullable=False),
)

# Two cores that are in one conversation want to write at the same position: one of them learns that it is late.
MESSAGES = Table(
    "messages",
    METADATA,
    Column("conversation_id", ForeignKey("conversations.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("source", String(16), nullable=False),
    Column("source_id", String(300)),
    Column("body", JSON, nullable=False),
    Column("calls", JSON, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("conversation_id", "source", "source_id"),  # a bot's ids are not the fleet's
)

USERS = Table(
    "users",
    METADATA,
    Column("id", String(200), primary_key=True),
    Column("permission_level", String(16), nullable=False),
)

PERSONAS = Table(
    "personas",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("allowed_modules", JSON(none_as_null=True)),  # an array of names; NULL: all
)

# A table of its own, and no column there: conversations may be older than it.
CONVERSATION_PERSONAS = Table(
    "conversation_personas",
    METADATA,
    Column("conversation_id", ForeignKey("conversations.id"), primary_key=True),
    Column("persona", String(200), nullable=False),
)
