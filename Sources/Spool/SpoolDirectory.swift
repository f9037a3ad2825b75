import FoundationEssentials
import Glibc
import Synchronization

/// The directory as the file system has it: locked, private, and every write in it durable when it returns.
final class SpoolDirectory: Sendable {
    /// How a look at a name ended.
    enum Reading: Sendable {
        case content([UInt8])
        /// It can't be read at present. That says nothing about what is in it: a wrong owner or a failing disk gets mended.
        case unreadable(SpoolError)
        case absent
    }

    /// Where it is.
    let path: String
    /// Open on the directory, and what the lock is held with. Replaced when the directory is another one.
    private let held: Mutex<Int32>

    /// Opens a directory, creates it if its parent is there, and locks it against other processes.
    ///
    /// - Throws: `unusable`, `inUse`.
    init(_ path: String) throws(SpoolError) {
        self.path = path
        held = Mutex(try Self.open(path))
    }

    deinit {
        close(held.withLock { $0 })
    }

    /// Lets another process have the directory.
    func unlock() {
        held.withLock { _ = flock($0, LOCK_UN) }
    }

    /// The names in it, hidden ones left out.
    func names() throws(SpoolError) -> [String] {
        try reopenIfReplaced()
        do {
            return try FileManager.default.contentsOfDirectory(atPath: path).filter { !$0.hasPrefix(".") }.sorted()
        } catch {
            throw SpoolError(.failed, "cannot list the spool directory \(path): \(Self.cause())")
        }
    }

    /// Removes what was being written when a process ended: nobody was told that it is durable.
    func removeUnfinished() {
        // What can't be listed now is listed, and reported, by whoever comes next.
        guard let names = try? FileManager.default.contentsOfDirectory(atPath: path) else { return }
        for name in names where name.hasPrefix(".") && name.hasSuffix(Self.unfinished) {
            unlink(file(name))
        }
    }

    /// Writes a file. It is there, whole and for good, when this returns; and not there when it throws.
    func write(_ bytes: [UInt8], as name: String) throws(SpoolError) {
        try reopenIfReplaced()
        let temporary = file(".\(name)\(Self.unfinished)")
        do throws(SpoolError) {
            try writeDurably(bytes, to: temporary)
            guard Glibc.rename(temporary, file(name)) == 0 else { throw Self.failure("cannot write to", path) }
        } catch {
            unlink(temporary)
            throw error
        }
        guard held.withLock({ fsync($0) }) == 0 else {
            let failure = Self.failure("cannot sync", path)
            unlink(file(name))
            throw failure
        }
    }

    /// Tries whether so many bytes can be written; leaves nothing behind.
    func checkRoom(for count: Int) throws(SpoolError) {
        try reopenIfReplaced()
        let temporary = file(".room\(Self.unfinished)")
        defer { unlink(temporary) }
        try writeDurably([UInt8](repeating: 0, count: count), to: temporary)
    }

    /// Reads a file.
    ///
    /// - Throws: `failed` for what says nothing about this file: too few file descriptors or too little memory.
    func read(_ name: String) throws(SpoolError) -> Reading {
        let descriptor = Glibc.open(file(name), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
        guard descriptor >= 0 else {
            switch errno {
            case ENOENT: return .absent
            case EMFILE, ENFILE, ENOMEM, EINTR: throw Self.failure("cannot read", file(name))
            default: return .unreadable(Self.failure("cannot read", file(name)))
            }
        }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0 else { return .unreadable(Self.failure("cannot read", file(name))) }
        var content: [UInt8] = []
        content.reserveCapacity(Int(clamping: status.st_size))
        var block = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = Glibc.read(descriptor, &block, block.count)
            if count < 0, errno == EINTR { continue }
            guard count >= 0 else { return .unreadable(Self.failure("cannot read", file(name))) }
            guard count > 0 else { return .content(content) }
            content += block[..<count]
        }
    }

    /// Removes a file; one that is gone already is as good. Not durable: what comes back after a crash is stored again.
    func remove(_ name: String) throws(SpoolError) {
        guard unlink(file(name)) == 0 || errno == ENOENT else { throw Self.failure("cannot remove", file(name)) }
    }

    /// Gives a file another name, one that is free.
    ///
    /// - Returns: the name.
    func rename(_ name: String, appending suffix: String) throws(SpoolError) -> String {
        var candidate = name + suffix
        var number = 1
        while access(file(candidate), F_OK) == 0 {
            number += 1
            candidate = "\(name).\(number)\(suffix)"
        }
        guard Glibc.rename(file(name), file(candidate)) == 0 else { throw Self.failure("cannot rename", file(name)) }
        return candidate
    }

    /// The size of a regular file in bytes; nil for anything else.
    func size(_ name: String) -> Int64? {
        var status = stat()
        guard lstat(file(name), &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
        return Int64(status.st_size)
    }

    // MARK: - Private parts

    private static let unfinished = ".unfinished"

    private func file(_ name: String) -> String { "\(path)/\(name)" }

    /// Follows when somebody removed the directory and made it again.
    private func reopenIfReplaced() throws(SpoolError) {
        try held.withLock { held throws(SpoolError) in
            var (ours, there) = (stat(), stat())
            let isThere = stat(path, &there) == 0
            if isThere, fstat(held, &ours) == 0, ours.st_ino == there.st_ino, ours.st_dev == there.st_dev { return }
            let replacement = try Self.open(path)
            close(held)
            held = replacement
        }
    }

    /// Names the directory in its errors, not the file, so that a fault that goes on has one text.
    private func writeDurably(_ bytes: [UInt8], to file: String) throws(SpoolError) {
        let descriptor = Glibc.open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0o600)
        guard descriptor >= 0 else { throw Self.failure("cannot write to", path) }
        var rest = bytes[...]
        while !rest.isEmpty {
            let written = Glibc.write(descriptor, Array(rest), rest.count)
            if written < 0, errno == EINTR { continue }
            guard written > 0 else { break }
            rest = rest.dropFirst(written)
        }
        let failure = rest.isEmpty && fsync(descriptor) == 0 ? nil : Self.failure("cannot write to", path)
        // Some file systems report only here that there was no room.
        guard close(descriptor) == 0 || failure != nil else { throw Self.failure("cannot write to", path) }
        if let failure { throw failure }
    }

    private static func failure(_ what: String, _ path: String) -> SpoolError {
        let cause = cause()
        let advice = errno == ENOSPC || errno == EDQUOT ? "; make room there" : ""
        return SpoolError(.failed, "\(what) \(path): \(cause)\(advice)")
    }

    private static func cause() -> String { String(cString: strerror(errno)) }
}

// MARK: - Opening

extension SpoolDirectory {
    /// The open and locked directory.
    private static func open(_ path: String) throws(SpoolError) -> Int32 {
        if mkdir(path, 0o700) == 0 {
            try syncParent(of: path)
        } else if errno != EEXIST {
            throw unusable(path, "it can't be created (\(cause())); create it, or name another")
        }
        let descriptor = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else {
            throw unusable(path, "\(cause()); name a directory that siwad may read and write")
        }
        do throws(SpoolError) {
            guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
                guard errno == EWOULDBLOCK else { throw unusable(path, "it can't be locked (\(cause()))") }
                throw SpoolError(
                    .inUse,
                    "another siwad uses the spool directory \(path); give each daemon one of its own"
                )
            }
            try makePrivate(path, descriptor)
            guard access(path, R_OK | W_OK | X_OK) == 0 else {
                throw unusable(path, "\(cause()); name a directory that siwad may read and write")
            }
        } catch {
            close(descriptor)
            throw error
        }
        return descriptor
    }

    /// Has the new directory itself survive a power cut: what is in it is promised to.
    private static func syncParent(of path: String) throws(SpoolError) {
        let parent = Glibc.open(path + "/..", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard parent >= 0 else { throw unusable(path, "its parent directory can't be synced (\(cause()))") }
        defer { close(parent) }
        // Some file systems can't sync a directory, and need not.
        guard fsync(parent) == 0 || errno == EINVAL else {
            throw unusable(path, "its parent directory can't be synced (\(cause()))")
        }
    }

    /// Takes everybody else's rights away, unless the directory looks like one that serves others as well.
    private static func makePrivate(_ path: String, _ descriptor: Int32) throws(SpoolError) {
        var status = stat()
        guard fstat(descriptor, &status) == 0 else { throw unusable(path, cause()) }
        guard status.st_mode & 0o077 != 0 else { return }
        let isShared =
            status.st_uid != geteuid() || status.st_mode & S_ISVTX != 0 || status.st_nlink > 2
        guard !isShared, fchmod(descriptor, 0o700) == 0 else {
            throw unusable(path, "others may enter it; make it a directory for siwad alone (chmod 700, chown)")
        }
    }

    private static func unusable(_ path: String, _ problem: String) -> SpoolError {
        SpoolError(.unusable, "the spool directory \(path) can't be used: \(problem)")
    }
}
