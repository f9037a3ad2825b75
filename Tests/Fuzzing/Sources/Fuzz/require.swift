#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#else
    import Darwin
#endif

/// Ends the process as libFuzzer expects of a finding, with the sentence that doesn't hold. A failed precondition would
/// say nothing in an optimized build.
func require(_ holds: Bool, _ sentence: StaticString) {
    if !holds { refuse(sentence) }
}

/// Ends the process, since the sentence doesn't hold.
func refuse(_ sentence: StaticString) -> Never {
    print("does not hold: \(sentence)")
    fflush(nil)
    abort()
}
