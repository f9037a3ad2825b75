import AppleTokens
import FoundationEssentials
import Glibc

/// What waits in a spool directory, seen from outside: the daemon holds its lock.
struct SpoolContents: Sendable, Equatable {
    /// Files of one kind.
    struct Part: Sendable, Equatable {
        /// How many.
        var files = 0
        /// What they hold.
        var bytes: Int64 = 0
        /// When the oldest was written.
        var oldest: WallTime?
    }

    /// Files that wait for the database.
    var waiting = Part()
    /// Files that hold what the database refuses while it takes others: a notification each.
    var refused = Part()
    /// Files that were given another name because they can't be read.
    var setAside = 0
    /// Files that hold a notification with a bad signature.
    var forged = 0
    /// Files that are not read because others could have written them.
    var untrusted = 0
    /// The user id of the directory's owner.
    var owner: uid_t = 0

    /// What counts towards the limit.
    var bytes: Int64 { waiting.bytes + refused.bytes }

    /// Nothing.
    init() {}

    /// Looks into a directory; nil if it can't be read.
    init?(directory: String) {
        var place = stat()
        guard let names = try? FileManager.default.contentsOfDirectory(atPath: directory), stat(directory, &place) == 0
        else { return nil }
        owner = place.st_uid
        for name in names where !name.hasPrefix(".") {
            var status = stat()
            if lstat("\(directory)/\(name)", &status) == 0, status.st_mode & S_IFMT == S_IFREG,
                status.st_uid != place.st_uid || status.st_mode & 0o022 != 0
            {
                untrusted += 1
                continue
            }
            // Its name is the microsecond at which it was written.
            let stamp = name.prefix { $0 != "." }
            switch Int64(stamp) {
            case let stamp? where name.hasSuffix(".refused.spool"):
                refused.add("\(directory)/\(name)", writtenAt: stamp)
            case let stamp? where name.hasSuffix(".spool"): waiting.add("\(directory)/\(name)", writtenAt: stamp)
            default:
                if name.hasSuffix(".corrupt") || name.hasSuffix(".foreign") { setAside += 1 }
                if name.hasSuffix(".forged") { forged += 1 }
            }
        }
    }

    /// What is left for us on the file system of a directory, in bytes; nil if it can't be asked.
    static func free(at directory: String) -> Int64? {
        var status = statvfs()
        guard statvfs(directory, &status) == 0 else { return nil }
        let (bytes, overflow) = Int64(clamping: status.f_bavail).multipliedReportingOverflow(by: Int64(status.f_frsize))
        return overflow ? .max : bytes
    }
}

extension SpoolContents.Part {
    fileprivate mutating func add(_ path: String, writtenAt stamp: Int64) {
        files += 1
        var status = stat()
        if stat(path, &status) == 0 { bytes += Int64(status.st_size) }
        let written = WallTime(microseconds: stamp)
        oldest = min(oldest ?? written, written)
    }
}
