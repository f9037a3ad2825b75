/// `WallTime` is part of this target's API, so importing this target makes it visible.
@_exported public import Basics
