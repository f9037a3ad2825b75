import Glibc

/// Why a file can't be read.
public struct FileReadingError: Error, Sendable, Equatable, CustomStringConvertible {
    /// `No such file or directory`, `Permission denied`, …
    public let description: String

    /// An error that says this.
    public init(_ description: String) {
        self.description = description
    }

    /// An error of the system.
    init(errno code: Int32) {
        self.init(String(cString: strerror(code)))
    }
}

/// More than any configuration, secret, key or token has.
private let largestFile = 1 << 20

/// The bytes of a file or pipe, of at most 1 MiB; `-` is standard input.
/// - Throws: An error that says why not.
public func readFile(atPath path: String) throws(FileReadingError) -> [UInt8] {
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
        guard content.count <= largestFile else { throw FileReadingError("larger than 1 MiB") }
    }
}
