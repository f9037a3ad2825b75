import AppleNotifications
import FoundationEssentials
import Glibc

/// What waits in a spool directory, seen from outside: the daemon holds its lock.
struct SpoolContents: Sendable, Equatable {
    /// Files that wait.
    var files = 0
    /// What they hold.
    var bytes: Int64 = 0
    /// When the oldest was written.
    var oldest: WallTime?
    /// Files that were given another name because they can't be read.
    var setAside = 0

    /// Nothing.
    init() {}

    /// Looks into a directory; nil if it can't be read.
    init?(directory: String) {
        guard let names = try? FileManager.default.contentsOfDirectory(atPath: directory) else { return nil }
        for name in names {
            // Its name is the microsecond at which it was written.
            if name.hasSuffix(".spool"), let stamp = Int64(name.dropLast(6)) {
                files += 1
                var status = stat()
                if stat("\(directory)/\(name)", &status) == 0 { bytes += Int64(status.st_size) }
                let written = WallTime(microseconds: stamp)
                oldest = min(oldest ?? written, written)
            } else if name.hasSuffix(".corrupt") || name.hasSuffix(".foreign") {
                setAside += 1
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
