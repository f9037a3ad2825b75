import Glibc

/// Runs `body` on a thread of its own that nobody joins; false if there is none to be had.
func startThread(_ body: @escaping @Sendable () -> Void) -> Bool {
    final class Box {
        let body: @Sendable () -> Void
        init(_ body: @escaping @Sendable () -> Void) { self.body = body }
    }
    var attributes = pthread_attr_t()
    unsafe pthread_attr_init(&attributes)
    defer { unsafe pthread_attr_destroy(&attributes) }
    unsafe pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    // Decoding rows needs little, name resolution by the C library more.
    unsafe pthread_attr_setstacksize(&attributes, 1 << 20)
    let box = unsafe Unmanaged.passRetained(Box(body))
    var thread = pthread_t()
    let result = unsafe pthread_create(
        &thread,
        &attributes,
        { argument in
            guard let argument = unsafe argument else { return nil }
            unsafe Unmanaged<Box>.fromOpaque(argument).takeRetainedValue().body()
            return nil
        },
        box.toOpaque()
    )
    if result != 0 { unsafe box.release() }
    return result == 0
}
