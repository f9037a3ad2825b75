import CRename
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
        /// Others could have written it.
        case untrusted(Untrusted)
        case absent
    }

    /// The kind of a directory entry.
    enum Entry: Sendable, Equatable {
        /// A regular file that only siwad can write; its size in bytes.
        case file(size: Int64)
        case untrusted(Untrusted)
        /// No regular file, or no longer there.
        case other
    }

    /// A file that siwad does not read, and the cause.
    struct Untrusted: Sendable, Equatable {
        let path: String
        let objection: String
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

    /// Writes a file. It is complete and durable when this returns true, and absent when this throws.
    ///
    /// - Returns: false if a file of that name exists. It stays as it is.
    func write(_ bytes: [UInt8], as name: String) throws(SpoolError) -> Bool {
        try reopenIfReplaced()
        let temporary = file(".\(name)\(Self.unfinished)")
        do throws(SpoolError) {
            try writeDurably(bytes, to: temporary)
            guard Self.renameToFreeName(temporary, file(name)) else {
                guard errno == EEXIST else { throw Self.failure("cannot write to", path) }
                unlink(temporary)
                return false
            }
        } catch {
            unlink(temporary)
            throw error
        }
        guard held.withLock({ fsync($0) }) == 0 else {
            let failure = Self.failure("cannot sync", path)
            unlink(file(name))
            throw failure
        }
        return true
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
        if let objection = Trust(status).objection(for: geteuid()) {
            return .untrusted(Untrusted(path: file(name), objection: objection))
        }
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
        while !Self.renameToFreeName(file(name), file(candidate)) {
            guard errno == EEXIST else { throw Self.failure("cannot rename", file(name)) }
            number += 1
            candidate = "\(name).\(number)\(suffix)"
        }
        return candidate
    }

    /// Looks at a directory entry.
    func entry(_ name: String) -> Entry {
        var status = stat()
        guard lstat(file(name), &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return .other }
        if let objection = Trust(status).objection(for: geteuid()) {
            return .untrusted(Untrusted(path: file(name), objection: objection))
        }
        return .file(size: Int64(status.st_size))
    }

    // MARK: - Private parts

    private static let unfinished = ".unfinished"

    private func file(_ name: String) -> String { "\(path)/\(name)" }

    /// Renames a file without replacing another one.
    ///
    /// - Returns: false with `errno` set; EEXIST if a file of that name exists.
    private static func renameToFreeName(_ old: String, _ new: String) -> Bool {
        if renameat2(AT_FDCWD, old, AT_FDCWD, new, CRENAME_NOREPLACE) == 0 { return true }
        // File systems without this flag, such as NFS, can do the same in two steps.
        guard errno == EINVAL, link(old, new) == 0 else { return false }
        unlink(old)
        return true
    }

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
            // Copied only after a partial write.
            let written = Glibc.write(descriptor, rest.count == bytes.count ? bytes : Array(rest), rest.count)
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
    /// The file that marks a directory as a spool of siwad.
    static let marker = ".siwad-spool"
    private static let markerText = "This directory is a spool of siwad: its files wait for PostgreSQL.\n"

    /// Opens and locks the directory. A directory that is refused is not changed.
    private static func open(_ path: String) throws(SpoolError) -> Int32 {
        try checkParents(of: path)
        let isNew = mkdir(path, 0o700) == 0
        guard isNew || errno == EEXIST else {
            throw unusable(path, "it can't be created (\(cause())); create it, or name another")
        }
        if isNew { try syncParent(of: path) }
        let descriptor = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else {
            throw unusable(path, "\(cause()); name a directory that siwad may read and write")
        }
        do throws(SpoolError) {
            let isMarked = try checkAdoptable(path, descriptor)
            guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
                guard errno == EWOULDBLOCK else { throw unusable(path, "it can't be locked (\(cause()))") }
                throw SpoolError(
                    .inUse,
                    "another siwad uses the spool directory \(path); give each daemon one of its own"
                )
            }
            guard access(path, R_OK | W_OK | X_OK) == 0 else {
                throw unusable(path, "\(cause()); name a directory that siwad may read and write")
            }
            if !isMarked { try mark(path, descriptor) }
            // File names and sizes tell how much waits.
            guard fchmod(descriptor, 0o700) == 0 else { throw unusable(path, cause()) }
        } catch {
            close(descriptor)
            throw error
        }
        return descriptor
    }

    /// Checks that a directory is marked as a spool, or empty.
    ///
    /// - Returns: whether it is marked.
    private static func checkAdoptable(_ path: String, _ descriptor: Int32) throws(SpoolError) -> Bool {
        var status = stat()
        guard fstat(descriptor, &status) == 0 else { throw unusable(path, cause()) }
        if let objection = Trust(status).objection(for: geteuid()) {
            throw unusable(path, "\(objection); make it siwad's alone (chown, chmod 700), or name another")
        }
        var marker = stat()
        if fstatat(descriptor, Self.marker, &marker, AT_SYMLINK_NOFOLLOW) == 0, marker.st_mode & S_IFMT == S_IFREG,
            Trust(marker).objection(for: geteuid()) == nil
        {
            return true
        }
        let names: [String]
        do {
            names = try FileManager.default.contentsOfDirectory(atPath: path)
        } catch {
            throw unusable(path, "\(cause()); name a directory that siwad may read and write")
        }
        guard names.isEmpty else {
            throw unusable(
                path,
                "it is not empty and has no file \(Self.marker); name an empty directory or one that does not exist yet, or "
                    + "create \(Self.marker) in it if its files are siwad's"
            )
        }
        return false
    }

    /// Marks an empty directory as a spool.
    private static func mark(_ path: String, _ directory: Int32) throws(SpoolError) {
        let flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW
        let descriptor = openat(directory, Self.marker, flags, 0o600)
        guard descriptor >= 0 else { throw unusable(path, "it can't be written to (\(cause()))") }
        defer { close(descriptor) }
        // The content is for people. On a full disk the file may stay empty.
        _ = Glibc.write(descriptor, markerText, markerText.utf8.count)
        guard fsync(descriptor) == 0, fsync(directory) == 0 || errno == EINVAL else {
            throw unusable(path, "it can't be synced (\(cause()))")
        }
    }

    /// Checks that no other user can replace the directory: every parent up to the first one that root owns, along the
    /// given path and along the path without symbolic links.
    private static func checkParents(of path: String) throws(SpoolError) {
        let given = path.hasPrefix("/") ? path : FileManager.default.currentDirectoryPath + "/" + path
        for place in [given, resolved(given)].compactMap(\.self) {
            var parent = directory(of: place)
            while true {
                var status = stat()
                guard stat(parent, &status) == 0 else {
                    throw unusable(path, "\(parent) can't be read (\(cause())); create it, or name another directory")
                }
                let trust = Trust(status)
                if let objection = trust.objectionAsParent(for: geteuid()) {
                    throw unusable(
                        path,
                        "others can replace it through \(parent) (\(objection)); change that (chmod go-w, chown), or name "
                            + "another directory"
                    )
                }
                if trust.isRoots || parent == "/" { break }
                parent = directory(of: parent)
            }
        }
    }

    /// The path without symbolic links; nil if neither it nor its parent exists.
    private static func resolved(_ path: String) -> String? {
        func real(_ path: String) -> String? {
            guard let resolved = realpath(path, nil) else { return nil }
            defer { free(resolved) }
            return String(cString: resolved)
        }
        return real(path) ?? real(directory(of: path)).map { "\($0)/new" }
    }

    /// The path without its last component.
    private static func directory(of path: String) -> String {
        let components = path.split(separator: "/", omittingEmptySubsequences: true).filter { $0 != "." }
        return "/" + components.dropLast().joined(separator: "/")
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

    private static func unusable(_ path: String, _ problem: String) -> SpoolError {
        SpoolError(.unusable, "the spool directory \(path) can't be used: \(problem)")
    }
}
