package import Basics
package import JOSE

/// Issues nonces and recognises them again, without storing them: a nonce contains its expiry and a code over it and the client.
/// That each is used once is for the database to ensure.
package struct IssuedNonces: Sendable {
    package static let lifetime = Duration.seconds(600)

    package enum Finding: Sendable, Equatable {
        case issued
        /// Issued, but its time is over.
        case late
        /// Not issued with these keys for this client.
        case foreign
    }

    private static let randomLength = 16
    private static let codeLength = 16

    /// The first issues; all of them are recognised, so that a rotation interrupts no sign-in.
    private let keys: [[UInt8]]

    package init(keys: SealingKeys) throws(JOSEError) {
        self.keys = try keys.derivedKeys(for: "siwad nonces")
    }

    package func issue(for client: ClientID, now: WallTime) throws(JOSEError) -> String {
        let expiry = UInt64(bitPattern: (now + Self.lifetime).wholeSeconds)
        let time = stride(from: 56, through: 0, by: -8).map { UInt8(truncatingIfNeeded: expiry >> $0) }
        let content = time + (try SecureRandom.bytes(Self.randomLength))
        return Base64URL.encode(content + (try code(over: content, client, key: keys[0])))
    }

    package func find(_ nonce: String, for client: ClientID, now: WallTime) throws(JOSEError) -> Finding {
        // What is not base64url was not issued here.
        guard let bytes = try? Base64URL.decode(nonce), bytes.count == 8 + Self.randomLength + Self.codeLength else {
            return .foreign
        }
        let content = Array(bytes.dropLast(Self.codeLength))
        let presented = Array(bytes.suffix(Self.codeLength))
        var isIssued = false
        for key in keys where try code(over: content, client, key: key).isEqualInConstantTime(to: presented) {
            isIssued = true
        }
        guard isIssued else { return .foreign }
        let expiry = content.prefix(8).reduce(0 as UInt64) { $0 << 8 | UInt64($1) }
        return now <= WallTime(seconds: Int64(bitPattern: expiry)) ? .issued : .late
    }

    private func code(over content: [UInt8], _ client: ClientID, key: [UInt8]) throws(JOSEError) -> [UInt8] {
        let message = content + Array(client.rawValue.utf8)
        return Array(try HMACSHA256.code(of: message, key: key).prefix(Self.codeLength))
    }
}
