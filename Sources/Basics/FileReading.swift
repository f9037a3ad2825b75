import Glibc

package struct FileReadingError: Error, Sendable, Equatable, CustomStringConvertible {
    /// `No such file or directory`, `Permission denied`, …
    package let cause: String
    package let nextStep: String?

    /// There is no file of this name.
    package static let noFile = FileReadingError(errno: ENOENT)

    package init(_ cause: String, nextStep: String? = nil) {
        self.cause = cause
        self.nextStep = nextStep
    }

    package var description: String {
        nextStep.map { "\(cause): \($0)" } ?? cause
    }

    fileprivate init(errno code: Int32) {
        let nextStep: String? =
            switch code {
            case ENOENT, ENOTDIR, ENAMETOOLONG: "check the path"
            case EACCES, EPERM: "let this user read it"
            case EISDIR: "name a file in it"
            default: nil
            }
        self.init(String(cString: strerror(code)), nextStep: nextStep)
    }
}

package typealias FileReader = @Sendable (_ path: String) throws(FileReadingError) -> [UInt8]

/// More than any configuration, secret, key or token has.
private let largestFile = 1 << 20

/// Reads a file or pipe of at most 1 MiB; `-` is standard input.
package func readFile(atPath path: String) throws(FileReadingError) -> [UInt8] {
    let descriptor = path == "-" ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { throw FileReadingError(errno: errno) }
    defer { close(descriptor) }
    var content: [UInt8] = []
    var block = [UInt8](repeating: 0, count: 16_384)
    while true {
        let count = read(descriptor, &block, block.count)
        if count < 0, errno == EINTR { continue }
        guard count >= 0 else { throw FileReadingError(errno: errno) }
        guard count > 0 else { return content }
        content += block[..<count]
        guard content.count <= largestFile else {
            throw FileReadingError("larger than 1 MiB", nextStep: "check that it is the right one")
        }
    }
}
