import CRename
import Glibc
import Synchronization

/// The spool directory on disk: locked, private, and every write in it durable when it returns.
///
/// The path is resolved when the directory is opened. All files are used through the open directory, so that a change of the
/// path can't redirect them.
final class SpoolDirectory: Sendable {
    enum Reading: Sendable {
        case content([UInt8])
        /// It can't be read at present. That says nothing about its content: a wrong owner or a failing disk can be repaired.
        case unreadable(SpoolError)
        /// It is absent, or others could have written it, which the next scan reports.
        case gone
    }

    enum Entry: Sendable, Equatable {
        /// A regular file that only siwad can write; its size in bytes.
        case file(size: Int64)
        /// Others could have written it; with its path and the cause.
        case untrusted(String)
        /// Not a regular file, or no longer there.
        case other
    }

    let path: String
    /// Counts how often files disappeared, or the directory was replaced by another one.
    let losses = Atomic<Int>(0)
    /// Holds the lock.
    private let held: Mutex<Int32>

    /// - Throws: as ``Spool/init(directory:limit:)``.
    init(_ path: String) throws(SpoolError) {
        self.path = path
        held = Mutex(try Self.open(path))
        // Files that a process was writing when it ended: they were never acknowledged. A directory that can't be listed is
        // reported by the next scan.
        for name in Self.names(descriptor) ?? [] where name.hasPrefix(".") && name.hasSuffix(Self.unfinished) {
            unlinkat(descriptor, name, 0)
        }
    }

    deinit {
        close(descriptor)
    }

    func unlock() {
        _ = flock(descriptor, LOCK_UN)
    }

    /// The names of all files that are not hidden, sorted.
    func names() throws(SpoolError) -> [String] {
        try reopenIfReplaced()
        guard let names = Self.names(descriptor) else {
            throw SpoolError(code: .failed, message: "cannot list the spool directory \(path): \(systemError())")
        }
        return names.filter { !$0.hasPrefix(".") }.sorted()
    }

    /// Writes a file. It is complete and durable when this returns true, and absent when this throws.
    ///
    /// - Returns: false if a file of that name exists, which stays as it is.
    func write(_ bytes: [UInt8], as name: String) throws(SpoolError) -> Bool {
        try reopenIfReplaced()
        let temporary = ".\(name)\(Self.unfinished)"
        do throws(SpoolError) {
            try writeDurably(bytes, to: temporary, in: descriptor)
            guard renameToFreeName(temporary, name, in: descriptor) else {
                guard errno == EEXIST else { throw failure("cannot write to", path) }
                unlinkat(descriptor, temporary, 0)
                return false
            }
        } catch {
            unlinkat(descriptor, temporary, 0)
            throw error
        }
        guard fsync(descriptor) == 0 else {
            let failure = failure("cannot sync", path)
            unlinkat(descriptor, name, 0)
            throw failure
        }
        return true
    }

    /// Checks that a file of so many bytes can be written, with all steps of ``write(_:as:)``. Leaves no file.
    func checkRoom(for count: Int) throws(SpoolError) {
        // Hidden, and removed by the next process if this one ends here.
        let name = ".room\(Self.unfinished)"
        defer { unlinkat(descriptor, name, 0) }
        _ = try write([UInt8](repeating: 0, count: count), as: name)
    }

    /// - Throws: `failed` if the cause is not the file: too few file descriptors or too little memory.
    func read(_ name: String) throws(SpoolError) -> Reading { try read(name, in: descriptor) }

    private func read(_ name: String, in directory: Int32) throws(SpoolError) -> Reading {
        func failure() -> SpoolError { self.failure("cannot read", filePath(name)) }
        let file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)
        guard file >= 0 else {
            switch errno {
            case ENOENT: return .gone
            case EMFILE, ENFILE, ENOMEM, EINTR: throw failure()
            default: return .unreadable(failure())
            }
        }
        defer { close(file) }
        var status = stat()
        guard fstat(file, &status) == 0 else { return .unreadable(failure()) }
        guard FileTrust(status).problem(for: geteuid()) == nil else { return .gone }
        var content: [UInt8] = []
        content.reserveCapacity(Int(clamping: status.st_size))
        var block = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = Glibc.read(file, &block, block.count)
            if count < 0, errno == EINTR { continue }
            guard count >= 0 else { return .unreadable(failure()) }
            guard count > 0 else { return .content(content) }
            content += block[..<count]
        }
    }

    /// Removes a file, which may be gone already. Not durable: a file that is back after a crash is stored again.
    func remove(_ name: String) throws(SpoolError) {
        guard unlinkat(descriptor, name, 0) == 0 || errno == ENOENT else {
            throw failure("cannot remove", filePath(name))
        }
    }

    func rename(_ name: String, appending suffix: String) throws(SpoolError) -> String {
        var candidate = name + suffix
        var number = 1
        while !renameToFreeName(name, candidate, in: descriptor) {
            guard errno == EEXIST else { throw failure("cannot rename", filePath(name)) }
            number += 1
            candidate = "\(name).\(number)\(suffix)"
        }
        return candidate
    }

    func filePath(_ name: String) -> String { "\(path)/\(name)" }

    func entry(_ name: String) -> Entry { entry(name, in: descriptor) }

    private func entry(_ name: String, in directory: Int32) -> Entry {
        var status = stat()
        guard fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0, status.st_mode & S_IFMT == S_IFREG else {
            return .other
        }
        if let problem = FileTrust(status).problem(for: geteuid()) {
            return .untrusted("\(filePath(name)): \(problem)")
        }
        return .file(size: Int64(status.st_size))
    }

    /// Opens the directory again if the path leads to another one, such as a file system that was mounted late, and moves what
    /// waits in the former one there: it may be nowhere else.
    func reopenIfReplaced() throws(SpoolError) {
        try held.withLock { held throws(SpoolError) in
            var (ours, there) = (stat(), stat())
            let isThere = stat(path, &there) == 0
            if isThere, fstat(held, &ours) == 0, ours.st_ino == there.st_ino, ours.st_dev == there.st_dev { return }
            let replacement = try Self.open(path)
            do throws(SpoolError) {
                try moveFiles(from: held, to: replacement)
            } catch {
                close(replacement)
                throw error
            }
            close(held)
            held = replacement
            losses.add(1, ordering: .relaxed)
        }
    }

    // MARK: - Private parts

    /// A crash may leave copied files in both directories, and the other files in the former one.
    private func moveFiles(from old: Int32, to new: Int32) throws(SpoolError) {
        func failure() -> SpoolError {
            let cause = "files of the former spool directory can't be moved to \(path) (\(systemError()))"
            return SpoolError(code: .failed, message: "\(cause); restart siwad to leave them there")
        }
        guard let names = Self.names(old) else {
            var status = stat()
            // A directory that was removed, or whose server has forgotten it, has no files to move.
            guard fstat(old, &status) == 0, status.st_nlink > 0 else { return }
            throw failure()
        }
        var moved: [String] = []
        for name in names where SpoolIndex.isName(name) {
            // Others could have written it, or it is no file: then it is not read here either.
            guard case .file = entry(name, in: old) else { continue }
            let temporary = ".\(name)\(Self.unfinished)"
            defer { unlinkat(new, temporary, 0) }
            switch try read(name, in: old) {
            case .content(let bytes):
                moved.append(name)
                // An earlier attempt may have got this far.
                if case .content(bytes) = try read(name, in: new) { continue }
                try writeDurably(bytes, to: temporary, in: new)
                guard renameToFreeName(temporary, name, in: new) || errno == EEXIST,
                    case .content(bytes) = try read(name, in: new)
                else { throw failure() }
            case .gone:
                continue
            case .unreadable:
                throw failure()
            }
        }
        guard fsync(new) == 0 else { throw failure() }
        for name in moved { unlinkat(old, name, 0) }
    }

    private static let unfinished = ".unfinished"

    /// Only one thread uses the directory, so that no other can close it during use.
    private var descriptor: Int32 { held.withLock { $0 } }

    /// Returns false with `errno` set; EEXIST if a file of that name exists.
    private func renameToFreeName(_ old: String, _ new: String, in directory: Int32) -> Bool {
        if renameat2(directory, old, directory, new, CRENAME_NOREPLACE) == 0 { return true }
        // File systems without this flag, such as NFS, can do the same in two steps.
        guard errno == EINVAL, linkat(directory, old, directory, new, 0) == 0 else { return false }
        unlinkat(directory, old, 0)
        return true
    }

    /// Names the directory in its errors, not the file, so that a lasting fault always has the same text.
    private func writeDurably(_ bytes: [UInt8], to name: String, in directory: Int32) throws(SpoolError) {
        let file = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0o600)
        guard file >= 0 else { throw failure("cannot write to", path) }
        var rest = bytes[...]
        while !rest.isEmpty {
            // Copied only after a partial write.
            let written = Glibc.write(file, rest.count == bytes.count ? bytes : Array(rest), rest.count)
            if written < 0, errno == EINTR { continue }
            guard written > 0 else { break }
            rest = rest.dropFirst(written)
        }
        let failure = rest.isEmpty && fsync(file) == 0 ? nil : failure("cannot write to", path)
        // Some file systems report only here that there was no room.
        guard close(file) == 0 || failure != nil else { throw self.failure("cannot write to", path) }
        if let failure { throw failure }
    }

    private func failure(_ what: String, _ path: String) -> SpoolError {
        let advice = isDiskFull ? "; make room there" : ""
        return SpoolError(code: .failed, message: "\(what) \(path): \(systemError())\(advice)")
    }

    private static func names(_ directory: Int32) -> [String]? {
        // Another descriptor, because closedir(3) closes it.
        let copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard copy >= 0 else { return nil }
        guard let stream = fdopendir(copy) else {
            close(copy)
            return nil
        }
        defer { closedir(stream) }
        var names: [String] = []
        errno = 0
        while let entry = readdir(stream) {
            let name = withUnsafeBytes(of: &entry.pointee.d_name) { bytes in
                String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
            }
            if name != ".", name != ".." { names.append(name) }
        }
        return errno == 0 ? names : nil
    }
}

// MARK: - Opening

extension SpoolDirectory {
    /// The file that marks a directory as a spool of siwad.
    static let marker = ".siwad-spool"
    private static let markerText = "This directory is a spool of siwad: its files wait for PostgreSQL.\n"
    /// What to do about the error of a system call; by default, what the last one reported.
    static func advice(_ error: Int32 = errno) -> String {
        error == EROFS
            ? "under systemd, siwad writes only where ReadWritePaths= says (systemctl edit siwad)"
            : "name a directory that siwad may read and write"
    }

    /// Checks that ``open(_:)`` would accept the directory, or could create it. Changes nothing.
    static func check(_ path: String, for user: uid_t) throws(SpoolError) {
        let place = try TrustedPath.resolve(path, for: user)
        let descriptor = Glibc.open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
        guard descriptor >= 0 else {
            if errno == ENOENT { return }
            throw .unusable(path, "\(systemError()); \(advice())")
        }
        defer { close(descriptor) }
        _ = try checkAdoptable(path, descriptor, for: user)
    }

    /// Opens and locks the directory. A directory that is refused is not changed.
    private static func open(_ path: String) throws(SpoolError) -> Int32 {
        let place = try TrustedPath.resolve(path, for: geteuid())
        let isNew = mkdir(place, 0o700) == 0
        guard isNew || errno == EEXIST else {
            let advice = errno == EROFS ? advice() : "create it, or name another"
            throw temporaryIfFull(path, "it can't be created (\(systemError())); \(advice)")
        }
        if isNew { try syncParent(of: place, path) }
        let descriptor = Glibc.open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
        guard descriptor >= 0 else { throw .unusable(path, "\(systemError()); \(advice())") }
        do throws(SpoolError) {
            let isMarked = try checkAdoptable(path, descriptor, for: geteuid())
            guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
                guard errno == EWOULDBLOCK else { throw .unusable(path, "it can't be locked (\(systemError()))") }
                let message = "another siwad uses the spool directory \(path); give each daemon one of its own"
                throw SpoolError(code: .inUse, message: message)
            }
            if !isMarked { try mark(path, descriptor) }
            // The names and sizes of the files show how much waits.
            guard fchmod(descriptor, 0o700) == 0 else { throw .unusable(path, systemError()) }
        } catch {
            close(descriptor)
            throw error
        }
        return descriptor
    }

    /// Checks that a directory belongs to siwad and is empty, or marked as a spool, for which it returns true.
    private static func checkAdoptable(
        _ path: String,
        _ descriptor: Int32,
        for user: uid_t
    ) throws(SpoolError) -> Bool {
        var status = stat()
        guard fstat(descriptor, &status) == 0 else { throw .unusable(path, systemError()) }
        if let problem = FileTrust(status).problem(for: user) {
            throw .unusable(path, "\(problem); make it siwad's alone (chown, chmod 700), or name another")
        }
        guard faccessat(descriptor, ".", R_OK | W_OK | X_OK, 0) == 0 else {
            throw .unusable(path, "\(systemError()); \(advice())")
        }
        var marker = stat()
        if fstatat(descriptor, Self.marker, &marker, AT_SYMLINK_NOFOLLOW) == 0 {
            guard marker.st_mode & S_IFMT == S_IFREG else {
                throw .unusable(
                    path,
                    "its \(Self.marker) is not a regular file; remove that, or name another directory"
                )
            }
            if let problem = FileTrust(marker).problem(for: user) {
                let advice = "give it to siwad's user alone (chown, chmod 600), or name another directory"
                throw .unusable(path, "its \(Self.marker) is not trusted (\(problem)); \(advice)")
            }
            return true
        }
        guard let names = names(descriptor) else { throw .unusable(path, "\(systemError()); \(advice())") }
        guard names.isEmpty else {
            throw .unusable(
                path,
                "it is not empty and has no file \(Self.marker); name an empty directory or one that does not exist yet, or "
                    + "create \(Self.marker) in it if its files are siwad's"
            )
        }
        return false
    }

    private static func mark(_ path: String, _ directory: Int32) throws(SpoolError) {
        let flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW
        let descriptor = openat(directory, marker, flags, 0o600)
        guard descriptor >= 0 else { throw temporaryIfFull(path, "it can't be written to (\(systemError()))") }
        defer { close(descriptor) }
        // The content is for people. On a full disk the file may stay empty.
        _ = Glibc.write(descriptor, markerText, markerText.utf8.count)
        guard fsync(descriptor) == 0, fsync(directory) == 0 || errno == EINVAL else {
            throw temporaryIfFull(path, "it can't be synced (\(systemError()))")
        }
    }

    /// Makes the new directory itself survive a power failure.
    private static func syncParent(of place: String, _ path: String) throws(SpoolError) {
        let parent = Glibc.open(place + "/..", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard parent >= 0 else { throw .unusable(path, "its parent directory can't be synced (\(systemError()))") }
        defer { close(parent) }
        // Some file systems can't sync a directory and need not.
        guard fsync(parent) == 0 || errno == EINVAL else {
            throw temporaryIfFull(path, "its parent directory can't be synced (\(systemError()))")
        }
    }

    /// A full disk or quota is temporary, anything else needs an operator.
    private static func temporaryIfFull(_ path: String, _ problem: String) -> SpoolError {
        guard isDiskFull else { return .unusable(path, problem) }
        let message = "the spool directory \(path) can't be used at present: \(problem); make room there"
        return SpoolError(code: .failed, message: message)
    }
}

private var isDiskFull: Bool { errno == ENOSPC || errno == EDQUOT }
