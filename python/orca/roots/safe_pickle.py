"""Pickles with a digest against accidents. The key is public: this is no protection against forgers."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any, BinaryIO, ClassVar

from orca.errors import InvalidArgumentError
from orca.generations import ORCA, Generation

__all__ = ["SafePickle"]


class SafePickle:
    """Writes and reads pickles, and notices when a file is not the one that was written.

    Never load a file from somebody you do not trust: loading a pickle runs code.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> digest = SafePickle.dump([1, 2], file, return_digest=True)
        >>> _ = file.seek(0)
        >>> SafePickle.load(file, digest)
        [1, 2]
    """

    generation: ClassVar[Generation] = ORCA
    # The one of BigDL, so that digests of the two agree.
    key: ClassVar[bytes] = b"shared-key"

    @classmethod
    def dump(
        cls, obj: Any, file: BinaryIO, return_digest: bool = False, *args: Any, **kwargs: Any
    ) -> str | None:
        """Pickles ``obj`` into ``file``; gives the digest when it is asked for."""
        data = pickle.dumps(obj, *args, **kwargs)
        file.write(data)
        return cls._digest(data) if return_digest else None

    @classmethod
    def load(cls, file: BinaryIO, digest: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Reads what ``dump`` wrote; with ``digest`` it must be the same bytes."""
        if digest is None:
            return pickle.load(file, *args, **kwargs)
        data = file.read()
        if not hmac.compare_digest(cls._digest(data), str(digest)):
            with cls.generation.errors():
                raise InvalidArgumentError(
                    f"Pickle safe check failed: the digest is {cls._digest(data)}, not {digest}; "
                    "the file has changed since it was written"
                )
        return pickle.loads(data, *args, **kwargs)

    @classmethod
    def dumps(cls, obj: Any, *args: Any, **kwargs: Any) -> bytes:
        """Pickles ``obj``."""
        return pickle.dumps(obj, *args, **kwargs)

    @classmethod
    def _digest(cls, data: bytes) -> str:
        return hmac.new(cls.key, data, hashlib.sha1).hexdigest()
