import CLibFuzzer

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#else
    import Darwin
#endif

/// Runs libFuzzer on the target that the environment names: `FUZZ_TARGET=json Fuzz [libFuzzer's options and corpus
/// directories]`. Not by an argument, since libFuzzer starts its own program again with only the arguments it knows.
@main
enum Fuzz {
    static func main() {
        guard let name = getenv("FUZZ_TARGET"), let target = FuzzTarget(rawValue: String(cString: name)) else {
            for target in FuzzTarget.allCases { print(target.rawValue) }
            return
        }
        var count = CommandLine.argc
        var arguments: UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>? = CommandLine.unsafeArgv
        _ = LLVMFuzzerRunDriver(&count, &arguments, target.entry)
    }
}
