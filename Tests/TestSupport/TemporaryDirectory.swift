import FoundationEssentials
import Glibc
import Testing

/// A directory for one test, removed with its content in `deinit`.
package final class TemporaryDirectory: Sendable {
    package let path: String
    private let isMount: Bool

    package init() throws {
        path = try Self.make()
        isMount = false
    }

    /// A file system in memory with this capacity in bytes. Only root can mount one: see ``canMount``.
    package init(capacity: Int) throws {
        path = try Self.make()
        isMount = mount("tmpfs", path, "tmpfs", 0, "size=\(capacity),mode=0700") == 0
        try #require(isMount, "mounting tmpfs failed: \(String(cString: strerror(errno)))")
    }

    deinit {
        if isMount { umount2(path, Int32(MNT_DETACH)) }
        // A directory that remains in /tmp affects no other test.
        try? FileManager.default.removeItem(atPath: path)
    }

    /// True if ``init(capacity:)`` works here. Tried once.
    package static let canMount: Bool = {
        guard geteuid() == 0, let path = try? make() else { return false }
        defer { rmdir(path) }
        guard mount("tmpfs", path, "tmpfs", 0, "size=65536") == 0 else { return false }
        return umount2(path, Int32(MNT_DETACH)) == 0
    }()

    /// Makes its file system read only, or writable again.
    package func remount(isReadOnly: Bool) throws {
        let flags = UInt(MS_REMOUNT) | (isReadOnly ? UInt(MS_RDONLY) : 0)
        try #require(mount("tmpfs", path, "tmpfs", flags, nil) == 0, "\(String(cString: strerror(errno)))")
    }

    /// The sorted names in it, including hidden ones.
    package var names: [String] {
        get throws { try FileManager.default.contentsOfDirectory(atPath: path).sorted() }
    }

    /// The names in it, without the file that marks siwad's spool.
    package var spoolFiles: [String] {
        get throws { try names.filter { $0 != ".siwad-spool" } }
    }

    /// The sorted names in any directory, including hidden ones.
    package static func names(at path: String) throws -> [String] {
        try FileManager.default.contentsOfDirectory(atPath: path).sorted()
    }

    /// The path of a file in it.
    package func file(_ name: String) -> String { "\(path)/\(name)" }

    package func content(_ name: String) throws -> [UInt8] {
        try Array(#require(FileManager.default.contents(atPath: file(name))))
    }

    package func write(_ content: [UInt8], to name: String) throws {
        try #require(FileManager.default.createFile(atPath: file(name), contents: Data(content)))
    }

    private static func make() throws -> String {
        var template = Array("/tmp/siwad-test-XXXXXX".utf8CString)
        try #require(mkdtemp(&template) != nil)
        return String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}
