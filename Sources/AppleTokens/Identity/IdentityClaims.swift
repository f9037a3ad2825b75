import Basics
import JOSE

/// The claims of an identity token whose signature is valid, read in one pass and not yet checked.
struct IdentityClaims: Sendable {
    private(set) var issuer: Claim<String> = .absent
    private(set) var audience: Claim<String> = .absent
    private(set) var expiry: Claim<Int64> = .absent
    private(set) var issuedAt: Claim<Int64> = .absent
    private(set) var authenticatedAt: Claim<Int64> = .absent
    private(set) var subject: Claim<String> = .absent
    private(set) var nonce: Claim<String> = .absent
    private(set) var nonceIsSupported: Bool?
    /// `c_hash`
    private(set) var codeHash: Claim<String> = .absent
    /// `at_hash`
    private(set) var accessTokenHash: Claim<String> = .absent
    private(set) var email: String?
    private(set) var emailIsVerified: Bool?
    private(set) var emailIsPrivate: Bool?
    private(set) var realUserStatus: Int64?
    private(set) var transferSubject: String?
    private(set) var organization: String?
    /// True for a notification.
    private(set) var hasEvents = false

    /// Claims of other names are skipped, and must be strict JSON too.
    init(parsing payload: [UInt8]) throws(JOSEError) {
        var reader = JSONReader(payload)
        try reader.beginObject()
        while try reader.nextMember() { try readMember(&reader) }
        try reader.end()
    }

    private mutating func readMember(_ reader: inout JSONReader) throws(JOSEError) {
        if reader.nameIs("iss") {
            issuer = Claim(try reader.stringOrSkip())
        } else if reader.nameIs("aud") {
            audience = Claim(try reader.stringOrSkip())
        } else if reader.nameIs("exp") {
            expiry = Claim(try reader.integerOrSkip())
        } else if reader.nameIs("iat") {
            issuedAt = Claim(try reader.integerOrSkip())
        } else if reader.nameIs("auth_time") {
            authenticatedAt = Claim(try reader.integerOrSkip())
        } else if reader.nameIs("sub") {
            subject = Claim(try reader.stringOrSkip())
        } else if reader.nameIs("nonce") {
            nonce = Claim(try reader.stringOrSkip())
        } else if reader.nameIs("nonce_supported") {
            nonceIsSupported = try reader.flagOrSkip()
        } else if reader.nameIs("c_hash") {
            codeHash = Claim(try reader.stringOrSkip())
        } else if reader.nameIs("at_hash") {
            accessTokenHash = Claim(try reader.stringOrSkip())
        } else {
            try readPerson(&reader)
        }
    }

    /// The claims about the person. One of another type is ignored, so that the sign-in is not lost.
    private mutating func readPerson(_ reader: inout JSONReader) throws(JOSEError) {
        if reader.nameIs("email") {
            email = try reader.stringOrSkip()
        } else if reader.nameIs("email_verified") {
            emailIsVerified = try reader.flagOrSkip()
        } else if reader.nameIs("is_private_email") {
            emailIsPrivate = try reader.flagOrSkip()
        } else if reader.nameIs("real_user_status") {
            realUserStatus = try reader.integerOrSkip()
        } else if reader.nameIs("transfer_sub") {
            transferSubject = try reader.stringOrSkip()
        } else if reader.nameIs("org_id") {
            organization = try reader.stringOrSkip()
        } else {
            if reader.nameIs("events") { hasEvents = true }
            try reader.skipValue()
        }
    }

    /// An address that Apple verified and that can be stored: at most 320 bytes, as RFC 5321 §4.5.3.1 allows 64 + 1 + 255.
    var verifiedEmail: VerifiedIdentity.Email? {
        guard let email, emailIsVerified == true, 1...320 ~= email.utf8.count, !email.holdsControlCharacter else {
            return nil
        }
        return VerifiedIdentity.Email(address: email, isPrivate: emailIsPrivate ?? false)
    }
}
