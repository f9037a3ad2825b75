import Glibc

/// The addresses of a host in the resolver's order, each once; none if the name is unknown. Blocks.
///
/// Safe to use: the resolver's list is freed once, after its addresses are copied.
func addresses(of host: String) -> [String] {
    // As libpq asks.
    var hints = unsafe addrinfo()
    unsafe hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
    var list: UnsafeMutablePointer<addrinfo>?
    guard unsafe getaddrinfo(host, nil, &hints, &list) == 0 else { return [] }
    defer { unsafe freeaddrinfo(list) }
    var addresses: [String] = []
    var next = unsafe list
    while let entry = unsafe next?.pointee {
        unsafe next = entry.ai_next
        // `getnameinfo` writes a text and its NUL into the buffer, or fails.
        let address = unsafe withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(NI_MAXHOST)) { text in
            let (start, size) = (text.baseAddress, socklen_t(text.count))
            let status = unsafe getnameinfo(entry.ai_addr, entry.ai_addrlen, start, size, nil, 0, NI_NUMERICHOST)
            return unsafe status == 0 ? String(copying: start) : nil
        }
        if let address, !addresses.contains(address) { addresses.append(address) }
    }
    return addresses
}
