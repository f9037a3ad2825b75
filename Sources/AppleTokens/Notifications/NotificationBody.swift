import Basics
import JOSE

/// Finds the token in the body of a request.
///
/// Apple does not document the Content-Type, so the content decides: a JSON object with the string member `payload`, a form
/// with the field `payload`, or the token alone; white space around them is allowed.
package enum NotificationBody {
    /// A notification is about one kilobyte.
    package static let maximumBytes = 65_536

    /// Returns the token without checking that it is a compact JWS.
    ///
    /// - Throws: ``Rejection/malformedBody``, ``Rejection/bodyTooLarge``, or ``Rejection/appStoreNotification`` for a body with
    ///   `signedPayload`, which App Store Server Notifications have.
    package static func token(in body: [UInt8]) throws(Rejection) -> [UInt8] {
        guard body.count <= maximumBytes else { throw .bodyTooLarge }
        let content = body.trimmed(isSpace)
        guard let first = content.first else { throw .malformedBody }
        if first == UInt8(ascii: "{") { return try token(json: body) }
        // A token has only base64url and dots, which cannot make up a form.
        return isToken(content) ? Array(content) : try token(form: content)
    }

    package static func token(in body: Span<UInt8>) throws(Rejection) -> [UInt8] {
        guard body.count <= maximumBytes else { throw .bodyTooLarge }
        let copy = [UInt8](capacity: body.count) { copy in
            for index in body.indices { copy.append(body[index]) }
        }
        return try token(in: copy)
    }

    /// True for base64url with at least one dot.
    private static func isToken(_ text: ArraySlice<UInt8>) -> Bool {
        let (dash, dot, underscore) = (UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"))
        return text.contains(dot)
            && text.allSatisfy { $0.isLetterOrDigit || $0 == dash || $0 == dot || $0 == underscore }
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
    private enum Content {
        case token([UInt8])
        case appStore
        case nothing
    }

    private static func token(json: [UInt8]) throws(Rejection) -> [UInt8] {
        // The sender learns no more than that the body is malformed.
        guard let content = try? content(json: json) else { throw .malformedBody }
        return try token(from: content)
    }

    private static func content(json: [UInt8]) throws(JOSEError) -> Content {
        var content = Content.nothing
        var reader = JSONReader(json)
        try reader.beginObject()
        while try reader.nextMember() {
            if reader.nameIs("payload") {
                content = .token(try reader.utf8())
            } else {
                if reader.nameIs("signedPayload"), case .nothing = content { content = .appStore }
                try reader.skipValue()
            }
        }
        try reader.end()
        return content
    }

    private static func token(from content: Content) throws(Rejection) -> [UInt8] {
        switch content {
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
    /// A form with a token has one field. Without a limit a body of separators would take milliseconds.
    private static let maximumFields = 16

    private static let payload = Array("payload".utf8)
    private static let signedPayload = Array("signedPayload".utf8)

    /// Parses `application/x-www-form-urlencoded` (WHATWG URL §5.1) strictly: a second payload, a malformed escape in a name or
    /// in the payload, or too many fields make the form malformed.
    private static func token(form: ArraySlice<UInt8>) throws(Rejection) -> [UInt8] {
        var content = Content.nothing
        var rest = form
        for _ in 0..<maximumFields {
            let field = rest.prefix { $0 != UInt8(ascii: "&") }
            let name = field.prefix { $0 != UInt8(ascii: "=") }
            if try spells(name, payload) {
                if case .token = content { throw .malformedBody }
                content = .token(try decoded(field[name.endIndex...].dropFirst()))
            } else if try spells(name, signedPayload), case .nothing = content {
                content = .appStore
            }
            rest = rest[field.endIndex...]
            guard rest.popFirst() != nil else { return try token(from: content) }
        }
        throw .malformedBody
    }

    /// Compares while decoding, without an allocation for each name.
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
