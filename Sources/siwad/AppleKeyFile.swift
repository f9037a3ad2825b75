import AppleTokens
import Basics
import Glibc
import JOSE

/// Reads the file of a key as Apple's portal offers it: `AuthKey_KEYID.p8`.
enum AppleKeyFile {
    static func read(_ entry: AppleKeys.Entry) throws(AppleKeyFileError) -> P256PrivateKey {
        let name = entry.file.split(separator: "/").last ?? ""
        if let match = name.wholeMatch(of: /AuthKey_(.*)\.p8/), match.1 != entry.keyID {
            throw AppleKeyFileError(
                "\(entry.file): its name is that of another key than \(entry.keyID): correct one of them"
            )
        }
        var status = stat()
        if stat(entry.file, &status) == 0, status.st_mode & 0o007 != 0 {
            throw AppleKeyFileError("\(entry.file): other users can read or change it: chmod 600 protects it")
        }
        let text: String
        do throws(FileReadingError) {
            text = String(decoding: try readFile(atPath: entry.file), as: UTF8.self)
        } catch {
            throw AppleKeyFileError("\(entry.file): \(error)")
        }
        do throws(JOSEError) {
            return try P256PrivateKey(pem: text)
        } catch {
            throw AppleKeyFileError("\(entry.file): \(error.message)")
        }
    }
}

extension AppleKeys {
    /// A file of these that systemd passes to a service, while the service does not run (systemd.exec(5), "CREDENTIALS").
    var absentCredential: String? {
        entries.map(\.file).first { $0.hasPrefix("/run/credentials/") && access($0, F_OK) != 0 && errno == ENOENT }
    }
}

struct AppleKeyFileError: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) {
        self.description = description
    }
}
