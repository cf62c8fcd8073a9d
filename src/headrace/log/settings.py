"""How the embedded log spends memory, disk and time. The section `[log]` of the configuration."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024


class LogSettings(msgspec.Struct, frozen=True):
    commit_bytes_max: int = 8 * MIB
    """One write and one sync take at most about this much."""
    queue_bytes_max: int = 64 * MIB
    """Submitted and not yet durable; above it producers are asked to pause."""
    journal_file_bytes: int = 64 * MIB
    journal_bytes_max: int = 256 * MIB
    """Above it the oldest records are sealed, however few, so that journal files can go."""
    journal_spares_max: int = 4
    """Journal files that are kept to be written over, which is quicker than making new ones."""
    segment_bytes: int = 32 * MIB
    """A partition's tail of this size is sealed; smaller segments are merged up to it."""
    tail_bytes_max: int = 256 * MIB
    """All tails together; above it commits wait for the sealing of segments."""
    seal_apart_bytes: int = 8 * MIB
    """A segment of this size is made by a process of its own; 0 for never."""
    seal_age_s: float = 600.0
    """A tail whose oldest record is older is sealed."""
    merge_segments_min: int = 8
    """So many small neighbouring segments become one."""
    compact_bytes_min: int = 4 * MIB
    """Tables smaller than this are never compacted."""
    open_segments_max: int = 256
    """Segments kept memory mapped."""
    disk_reserve_bytes: int = 64 * MIB
    """With less than this free, appends are refused and reads go on."""
    maintenance_interval_s: float = 5.0
    """How often retention, age and compaction are looked at; sealing by size does not wait for it."""
