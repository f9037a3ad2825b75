import FoundationEssentials
import Glibc

/// The `siwad` under test.
enum Binary {
    /// `SIWAD_BINARY`, or the executable that was built with these tests.
    static let path: String = {
        if let path = ProcessInfo.processInfo.environment["SIWAD_BINARY"], !path.isEmpty {
            // Programs start in another directory.
            return path.hasPrefix("/") ? path : FileManager.default.currentDirectoryPath + "/" + path
        }
        return folder(of: testProgram) + "/siwad"
    }()

    /// Whether it is a release build. Limits on time and memory apply to release builds only.
    static var isRelease: Bool { path.contains("/release/") }

    private static var testProgram: String {
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        let length = readlink("/proc/self/exe", &buffer, buffer.count)
        guard length > 0 else { return CommandLine.arguments[0] }
        return String(decoding: buffer.prefix(length).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    private static func folder(of path: String) -> String {
        path.split(separator: "/", omittingEmptySubsequences: false).dropLast().joined(separator: "/")
    }
}
