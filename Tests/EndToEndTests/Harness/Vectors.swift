import FoundationEssentials

/// Two notifications that Apple signed, and its key set of that time. They are not part of the repository.
enum Vectors {
    /// A real notification, and when Apple signed it.
    struct Vector: Sendable, CustomStringConvertible {
        let file: String
        let app: String
        let issuedAt: Int64
        let id: String

        var description: String { file }
    }

    static let all = [
        Vector(
            file: "notification-2022-07.jws",
            app: "jp.yauth.signin.app",
            issuedAt: 1_657_617_092,
            id: "S25cB0PbHs6y97gYYmgydQ"
        ),
        Vector(
            file: "notification-2022-12.jws",
            app: "com.fullqueuedeveloper.FQAuthSampleiOSApp",
            issuedAt: 1_670_016_131,
            id: "0PqlxYF011e15IMQOxEsFQ"
        ),
    ]

    private static let folder = URL(filePath: #filePath)
        .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent().appending(path: "shared/vectors")

    /// Whether the folder is there.
    static var areThere: Bool { FileManager.default.fileExists(atPath: folder.path) }

    static func path(_ name: String) -> String { folder.appending(path: name).path }

    /// Apple's key set of July 2022.
    static var keySet: String { path("apple-keys-2022-07.json") }

    /// The text of a file without the final line break.
    static func text(_ name: String) throws -> String {
        var text = try String(contentsOfFile: path(name), encoding: .utf8)
        while text.last?.isNewline == true { text.removeLast() }
        return text
    }
}
