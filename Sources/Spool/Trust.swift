import Glibc

/// The owner and mode of a file or directory, and who can change it.
struct Trust {
    /// Its owner.
    let owner: uid_t
    /// Its mode, permissions and kind.
    let mode: mode_t

    /// From the result of stat(2).
    init(_ status: stat) {
        self.init(owner: status.st_uid, mode: status.st_mode)
    }

    /// A file or directory with this owner and mode.
    init(owner: uid_t, mode: mode_t) {
        self.owner = owner
        self.mode = mode
    }

    /// The reason why others than `user` and root can change it; nil: they can't.
    func objection(for user: uid_t) -> String? {
        if owner != user { return "it belongs to user id \(owner) and siwad runs as \(user)" }
        return mode & 0o022 == 0 ? nil : "others can write it"
    }

    /// The reason why others than `user` and root can replace what is in this directory; nil: they can't.
    func objectionAsParent(for user: uid_t) -> String? {
        // Root may give a group of its choice the right to write. In a sticky directory such as /tmp users can rename
        // only their own files.
        if owner == 0 {
            return mode & 0o002 != 0 && mode & S_ISVTX == 0 ? "others can write it" : nil
        }
        return objection(for: user)
    }

    /// Whether root owns it, so that only root can change what is above it.
    var isRoots: Bool { owner == 0 }
}
