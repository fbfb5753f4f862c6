from mooncake.transfer_engine_topology_dump import main

main()
