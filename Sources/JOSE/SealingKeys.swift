import Basics

/// The keys that seal secrets in the database: the first seals, all of them open.
///
/// A sealed text is a compact JWE (RFC 7516) with `dir` and `A256GCM`, so any JOSE library opens it with the key. Its header is
/// exactly `{"alg":"dir","enc":"A256GCM","kid":NAME}`; the writer of a text chooses no member of it.
package struct SealingKeys: Sendable, Hashable, CustomStringConvertible {
    private struct Key: Sendable, Hashable {
        let name: String
        let secret: [UInt8]
    }

    /// Not empty.
    private let keys: [Key]

    /// The names in the order of the ring.
    package var names: [String] { keys.map(\.name) }

    /// The name of the key that seals.
    package var first: String { keys[0].name }

    /// The names only.
    package var description: String { names.joined(separator: ", ") }

    /// Parses lines `NAME:BASE64` of 32 bytes each; empty lines are skipped. A list in a configuration file has commas.
    ///
    /// - Throws: `malformedSealingKeys` with the number of the line, and never a part of a key.
    package init(parsing text: String) throws(JOSEError) {
        var keys: [Key] = []
        let lines = text.split(omittingEmptySubsequences: false) { $0.isNewline || $0 == "," }
        for (index, line) in lines.enumerated() where !line.allSatisfy(\.isWhitespace) {
            let key = try Self.key(line.trimmed(\.isWhitespace), line: index + 1)
            guard !keys.contains(where: { $0.name == key.name }) else {
                throw Self.malformed("line \(index + 1): another line has the same name: give each key its own")
            }
            keys.append(key)
        }
        guard !keys.isEmpty else { throw Self.malformed("there is no line NAME:BASE64") }
        self.keys = keys
    }

    private static func key(_ line: Substring, line number: Int) throws(JOSEError) -> Key {
        let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        guard parts.count == 2, isName(parts[0]) else {
            throw malformed(
                "line \(number): write NAME:BASE64, with a name of 1 to 64 letters, digits, hyphens, dots and underscores"
            )
        }
        // The reason adds nothing to the sentence.
        guard let secret = try? Base64.decode(String(parts[1])), secret.count == AES256GCM.keyLength else {
            throw malformed("line \(number): the key is not base64 of 32 bytes: siwad sealing new-key prints one")
        }
        return Key(name: String(parts[0]), secret: secret)
    }

    /// Names need no escape in JSON.
    package static func isName(_ text: some StringProtocol) -> Bool {
        1...64 ~= text.utf8.count && text.utf8.allSatisfy { $0.isLetterOrDigit || "-._".utf8.contains($0) }
    }

    /// A line with a random key.
    package static func newLine(name: String) throws(JOSEError) -> String {
        precondition(isName(name), "the caller checks the name")
        return "\(name):\(Base64.encode(try SecureRandom.bytes(AES256GCM.keyLength)))"
    }

    /// A key for another purpose from each key, in their order, so that no key is used for two purposes.
    package func derivedKeys(for purpose: String) throws(JOSEError) -> [[UInt8]] {
        try keys.map { key throws(JOSEError) in try HMACSHA256.derivedKey(from: key.secret, for: purpose) }
    }

    private static func malformed(_ message: String) -> JOSEError { JOSEError(.malformedSealingKeys, message) }
}

// MARK: - Sealing

extension SealingKeys {
    /// Encrypts with the first key. Name in `content` what the secret belongs to, and check it after opening: the text itself
    /// can be copied to another row.
    package func seal(_ content: [UInt8]) throws(JOSEError) -> [UInt8] {
        let key = keys[0]
        let header = Self.header(naming: key.name)
        let iv = try SecureRandom.bytes(AES256GCM.ivLength)
        let sealed = try AES256GCM.encrypt(content, key: key.secret, iv: iv, context: Array(header.utf8))
        return Array(
            [header, "", Base64URL.encode(iv), Base64URL.encode(sealed.ciphertext), Base64URL.encode(sealed.tag)]
                .joined(separator: ".").utf8
        )
    }

    /// - Throws: `malformedSealedText`, `unknownSealingKey` with the key's name, `notAuthentic`.
    package func open(_ sealed: [UInt8]) throws(JOSEError) -> [UInt8] {
        let parts = String(decoding: sealed, as: UTF8.self).split(separator: ".", omittingEmptySubsequences: false)
            .map(String.init)
        guard parts.count == 5, parts[1].isEmpty else { throw Self.malformedSealedText }
        let name = try Self.keyName(inHeader: parts[0])
        guard let key = keys.first(where: { $0.name == name }) else {
            throw JOSEError(.unknownSealingKey, "it was sealed with the key \(name), which the ring doesn't have")
        }
        let iv: [UInt8]
        let ciphertext: [UInt8]
        let tag: [UInt8]
        do {
            iv = try Base64URL.decode(parts[2])
            ciphertext = try Base64URL.decode(parts[3])
            tag = try Base64URL.decode(parts[4])
        } catch {
            throw Self.malformedSealedText
        }
        guard iv.count == AES256GCM.ivLength else { throw Self.malformedSealedText }
        let header = Array(parts[0].utf8)
        guard let content = try AES256GCM.decrypt(ciphertext, tag: tag, key: key.secret, iv: iv, context: header) else {
            throw JOSEError(.notAuthentic, "the key \(name) doesn't open it: it was altered or sealed with another key")
        }
        return content
    }

    /// Base64url of the header, which is also what is authenticated.
    private static func header(naming name: String) -> String {
        Base64URL.encode(Array("{\"alg\":\"dir\",\"enc\":\"A256GCM\",\"kid\":\"\(name)\"}".utf8))
    }

    private static func keyName(inHeader header: String) throws(JOSEError) -> String {
        let name: String?
        do {
            name = try JSONValue(parsing: Base64URL.decode(header))["kid"]?.string
        } catch {
            throw malformedSealedText
        }
        guard let name, isName(name), header == self.header(naming: name) else { throw malformedSealedText }
        return name
    }

    private static let malformedSealedText = JOSEError(
        .malformedSealedText,
        "this is not a sealed text: a compact JWE with dir and A256GCM"
    )
}
