/// The base of Apple's endpoints for sign-in: `https:`, or `http:` to a loopback address, with a host and nothing after it.
///
/// Client secrets and codes are sent there, so they never cross a network unencrypted, and no part of a request decides
/// about the host.
package struct AppleURL: Sendable, Hashable, CustomStringConvertible {
    /// Without a slash at the end.
    package let description: String
    /// True for `http:`, which is accepted to loopback addresses only.
    package let isUnencrypted: Bool
    /// In lower case and without brackets.
    let host: String

    /// - Throws: `invalidURL` with the forms that are allowed.
    package init(parsing text: String) throws(WebClientError) {
        guard let url = try? KeySetURL(parsing: text), case .web(let address) = url.source, let host = url.host,
            let scheme = address.firstRange(of: "://")
        else { throw Self.invalid }
        let place = address[scheme.upperBound...]
        let authority = place.prefix { $0 != "/" && $0 != "?" && $0 != "#" }
        guard place[authority.endIndex...].isEmpty || place[authority.endIndex...] == "/" else { throw Self.invalid }
        isUnencrypted = scheme.lowerBound == address.index(address.startIndex, offsetBy: 4)
        self.host = host
        description = String(address[..<authority.endIndex])
    }

    /// Apple's own.
    package static let apple = "https://appleid.apple.com"

    private static let invalid = WebClientError(
        .invalidURL,
        "the URL of Apple is not usable: write https://host, or http:// to a loopback address, without a path"
    )
}
