import AppleSimulator
import Basics
import FoundationEssentials
import Glibc
import JOSE
import Settings
import Terminal

/// The key of a simulated Apple in a directory: `key.pem` and `keys.json`.
struct KeyFiles {
    /// Where they are.
    let directory: String

    /// The private key, PKCS #8 in PEM.
    var key: String { directory + "/key.pem" }
    /// The key set.
    var keySet: String { directory + "/keys.json" }

    /// Makes both files.
    /// - Returns: nil if there is a key already; nothing is changed then.
    func create() throws -> SimulatedApple? {
        try NewFile.makeDirectory(directory)
        guard access(key, F_OK) != 0 else { return nil }
        let apple = try SimulatedApple.generate()
        guard try NewFile.create(key, mode: 0o600, Array(try apple.key.pem().utf8)) else { return nil }
        try NewFile.replace(keySet, mode: 0o644, Array((apple.keySetJSON + "\n").utf8))
        return apple
    }

    /// The Apple whose private key is in a PEM file.
    /// - Throws: `CommandFailure` that names the file.
    static func apple(keyFile: String, issuer: String) throws -> SimulatedApple {
        let bytes: [UInt8]
        do throws(FileReadingError) {
            bytes = try readFile(atPath: keyFile)
        } catch {
            throw CommandFailure(
                .failed,
                "--key \(Redaction.redacted(keyFile)): \(error.cause): write one with siwad simulate keys --out DIR"
            )
        }
        do throws(JOSEError) {
            return try SimulatedApple(key: RSAPrivateKey(pem: String(decoding: bytes, as: UTF8.self)), issuer: issuer)
        } catch {
            throw CommandFailure(.failed, "--key \(Redaction.redacted(keyFile)): \(error)")
        }
    }
}

/// Writes files so that nobody ever reads half of one.
enum NewFile {
    /// Makes a directory and those above it.
    static func makeDirectory(_ path: String) throws {
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        } catch {
            throw CommandFailure(.failed, "\(path): can't be made as a directory: choose another, or check its rights")
        }
    }

    /// Writes a file that must not exist.
    /// - Returns: whether it did not.
    static func create(_ path: String, mode: mode_t, _ bytes: [UInt8]) throws -> Bool {
        let descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)
        guard descriptor >= 0 else {
            if errno == EEXIST { return false }
            throw CommandFailure(.failed, "\(path): \(String(cString: strerror(errno)))")
        }
        defer { close(descriptor) }
        var start = 0
        while start < bytes.count {
            let written = bytes[start...].withUnsafeBytes { write(descriptor, $0.baseAddress, $0.count) }
            guard written > 0 else { throw CommandFailure(.failed, "\(path): \(String(cString: strerror(errno)))") }
            start += written
        }
        return true
    }

    /// Writes a file beside the old one and puts it into its place.
    static func replace(_ path: String, mode: mode_t, _ bytes: [UInt8]) throws {
        let temporary = "\(path).\(getpid()).tmp"
        unlink(temporary)
        guard try create(temporary, mode: mode, bytes), rename(temporary, path) == 0 else {
            throw CommandFailure(.failed, "\(path): \(String(cString: strerror(errno)))")
        }
    }
}
