import FoundationEssentials
import Glibc
import Testing

/// A directory of one test's own, gone with all that is in it when this is.
package final class TemporaryDirectory: Sendable {
    /// Where it is.
    package let path: String
    private let isMount: Bool

    /// An empty directory.
    package init() throws {
        path = try Self.make()
        isMount = false
    }

    /// A file system of its own, in memory, with room for so many bytes. Only root can have one: see ``canMount``.
    package init(capacity: Int) throws {
        path = try Self.make()
        isMount = mount("tmpfs", path, "tmpfs", 0, "size=\(capacity),mode=0700") == 0
        try #require(isMount, "tmpfs can't be mounted: \(String(cString: strerror(errno)))")
    }

    deinit {
        if isMount { umount2(path, Int32(MNT_DETACH)) }
        // What is left in /tmp disturbs nobody.
        try? FileManager.default.removeItem(atPath: path)
    }

    /// Whether ``init(capacity:)`` works here: tried once.
    package static let canMount: Bool = {
        guard geteuid() == 0, let path = try? make() else { return false }
        defer { rmdir(path) }
        guard mount("tmpfs", path, "tmpfs", 0, "size=65536") == 0 else { return false }
        return umount2(path, Int32(MNT_DETACH)) == 0
    }()

    /// Lets a file system of its own be read only, or written to again.
    package func remount(isReadOnly: Bool) throws {
        let flags = UInt(MS_REMOUNT) | (isReadOnly ? UInt(MS_RDONLY) : 0)
        try #require(mount("tmpfs", path, "tmpfs", flags, nil) == 0, "\(String(cString: strerror(errno)))")
    }

    /// The names in it, hidden ones included, sorted.
    package var names: [String] {
        get throws { try FileManager.default.contentsOfDirectory(atPath: path).sorted() }
    }

    /// The names in it, without the mark that siwad leaves in its spool.
    package var spoolFiles: [String] {
        get throws { try names.filter { $0 != ".siwad-spool" } }
    }

    /// The names in any directory, hidden ones included, sorted.
    package static func names(at path: String) throws -> [String] {
        try FileManager.default.contentsOfDirectory(atPath: path).sorted()
    }

    /// The path of a file in it.
    package func file(_ name: String) -> String { "\(path)/\(name)" }

    /// The content of a file in it.
    package func content(_ name: String) throws -> [UInt8] {
        try Array(#require(FileManager.default.contents(atPath: file(name))))
    }

    /// Puts a file into it.
    package func write(_ content: [UInt8], to name: String) throws {
        try #require(FileManager.default.createFile(atPath: file(name), contents: Data(content)))
    }

    private static func make() throws -> String {
        var template = Array("/tmp/siwad-test-XXXXXX".utf8CString)
        try #require(mkdtemp(&template) != nil)
        return String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}
