"""Every error this package raises on purpose.

    DpmtvError
    ├── UserError                 the caller can fix it; the command line exits with 2
    │   ├── PrivacyParameterError ε, δ, clip norm, relation or chunk shape that cannot be used
    │   ├── DataError             a file or row that cannot be read
    │   ├── ModelError            a model folder, hub id or architecture that cannot be used
    │   ├── LedgerError           a budget ledger that is missing, damaged, locked or read-only
    │   └── ArtifactError         a task vector that is damaged, unknown or made for another model
    └── InternalError             a broken promise of our own; the command line exits with 1

Messages name what is wrong, where (a row number, an option) and what to do. They never carry
private content: no question, answer, image name, norm or count of failures.
"""


class DpmtvError(Exception):
    """Root of the tree."""


class UserError(DpmtvError):
    """Something the caller can put right."""


class PrivacyParameterError(UserError):
    """A privacy parameter that gives no guarantee, or one that cannot be met."""


class DataError(UserError):
    """A file of records that cannot be used; names rows by number only."""


class ModelError(UserError):
    """A model that cannot be loaded or whose attention heads cannot be found."""


class LedgerError(UserError):
    """A budget ledger that is missing, damaged, replaced, locked, or cannot be written."""


class ArtifactError(UserError):
    """A task vector folder that is damaged, of an unknown version, or for another model."""


class InternalError(DpmtvError):
    """An invariant of this package does not hold; please report it."""
