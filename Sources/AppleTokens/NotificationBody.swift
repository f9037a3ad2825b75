import Basics
import JOSE

/// Finds the token in the body of a request.
///
/// Apple's Content-Type is not documented and has not been published, so the content decides: a JSON object with the
/// string member `payload`, a form with the field `payload`, or the bare token; white space around it is allowed.
package enum NotificationBody {
    /// The largest body that is looked at. A notification is about one kilobyte.
    package static let maximumBytes = 65_536

    /// The compact JWS in a body. That it is one is not checked here.
    ///
    /// - Throws: ``Rejection/malformedBody``, ``Rejection/bodyTooLarge``, or ``Rejection/appStoreNotification`` for a
    ///   body with `signedPayload`, which is what App Store Server Notifications have.
    package static func token(in body: [UInt8]) throws(Rejection) -> [UInt8] {
        guard body.count <= maximumBytes else { throw .bodyTooLarge }
        let content = trimmed(body)
        guard let first = content.first else { throw .malformedBody }
        if first == UInt8(ascii: "{") { return try token(json: body) }
        // A bare token has base64url and dots, so the characters that make up a form can't be in one.
        return isToken(content) ? Array(content) : try token(form: content)
    }

    /// The compact JWS in a body that lies elsewhere. That it is one is not checked here.
    ///
    /// - Throws: as for an array.
    package static func token(in body: Span<UInt8>) throws(Rejection) -> [UInt8] {
        guard body.count <= maximumBytes else { throw .bodyTooLarge }
        let copy = [UInt8](capacity: body.count) { copy in
            for index in body.indices { copy.append(body[index]) }
        }
        return try token(in: copy)
    }

    /// Whether it is base64url and dots, at least one of these.
    private static func isToken(_ text: ArraySlice<UInt8>) -> Bool {
        var dots = 0
        for byte in text {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
                continue
            case UInt8(ascii: "."): dots += 1
            default: return false
            }
        }
        return dots > 0
    }

    private static func trimmed(_ body: [UInt8]) -> ArraySlice<UInt8> {
        let content = body.drop(while: isSpace)
        let end = content.lastIndex { !isSpace($0) } ?? content.startIndex - 1
        return content[..<(end + 1)]
    }

    private static func isSpace(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\n"), UInt8(ascii: "\r"): true
        default: false
        }
    }
}

// MARK: - JSON

extension NotificationBody {
    private enum Finding {
        case token([UInt8])
        case appStore
        case nothing
    }

    private static func token(json: [UInt8]) throws(Rejection) -> [UInt8] {
        let found: Finding
        do {
            found = try finding(json: json)
        } catch {
            throw .malformedBody
        }
        return try token(from: found)
    }

    private static func finding(json: [UInt8]) throws(JOSEError) -> Finding {
        var finding = Finding.nothing
        var reader = JSONReader(json)
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("payload") {
                finding = .token(try reader.utf8())
            } else {
                if reader.nameIs("signedPayload"), case .nothing = finding { finding = .appStore }
                try reader.skipValue()
            }
        }
        try reader.end()
        return finding
    }

    private static func token(from finding: Finding) throws(Rejection) -> [UInt8] {
        switch finding {
        case .token(let token):
            guard !token.isEmpty else { throw .malformedBody }
            return token
        case .appStore: throw .appStoreNotification
        case .nothing: throw .malformedBody
        }
    }
}

// MARK: - Forms

extension NotificationBody {
    /// A form around a token has one field. Without a limit a body of separators costs milliseconds.
    private static let maximumFields = 16

    private static let payload = Array("payload".utf8)
    private static let signedPayload = Array("signedPayload".utf8)

    /// Reads `application/x-www-form-urlencoded` (WHATWG URL §5.1), strictly: a second payload, a malformed escape in it or
    /// in a name, or too many fields make the form unreadable.
    private static func token(form: ArraySlice<UInt8>) throws(Rejection) -> [UInt8] {
        var finding = Finding.nothing
        var rest = form
        for _ in 0..<maximumFields {
            let field = rest.prefix { $0 != UInt8(ascii: "&") }
            let name = field.prefix { $0 != UInt8(ascii: "=") }
            if try spells(name, payload) {
                if case .token = finding { throw .malformedBody }
                finding = .token(try decoded(field[name.endIndex...].dropFirst()))
            } else if try spells(name, signedPayload), case .nothing = finding {
                finding = .appStore
            }
            rest = rest[field.endIndex...]
            guard rest.popFirst() != nil else { return try token(from: finding) }
        }
        throw .malformedBody
    }

    /// Whether a text with escapes is `word`. It is compared while it is decoded, without an allocation for each name.
    private static func spells(_ text: ArraySlice<UInt8>, _ word: [UInt8]) throws(Rejection) -> Bool {
        var rest = text
        var length = 0
        var isSame = true
        while let byte = try nextByte(of: &rest) {
            isSame = isSame && length < word.count && byte == word[length]
            length += 1
        }
        return isSame && length == word.count
    }

    private static func decoded(_ text: ArraySlice<UInt8>) throws(Rejection) -> [UInt8] {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(text.count)
        var rest = text
        while let byte = try nextByte(of: &rest) { bytes.append(byte) }
        return bytes
    }

    /// Removes a byte or an escape and returns it decoded; nil at the end.
    private static func nextByte(of rest: inout ArraySlice<UInt8>) throws(Rejection) -> UInt8? {
        if rest.first == UInt8(ascii: "+") {
            rest.removeFirst()
            return UInt8(ascii: " ")
        }
        do {
            return try rest.popPercentDecoded()
        } catch {
            throw .malformedBody
        }
    }
}
