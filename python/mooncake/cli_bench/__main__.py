from mooncake.cli_bench import main

main()
